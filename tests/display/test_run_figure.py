from fedgram.display.run_figure import style_groups


def test_styles_of_many_groups_differ_and_stay_thin():
    styles = [(line, markers) for _, line, markers in style_groups(range(20), range(20))]
    assert len({(line["color"], markers["marker"]) for line, markers in styles}) == 20
    widths = [line["lw"] for line, _ in styles]
    assert widths == sorted(set(widths), reverse=True)
    assert max(widths) < 6
    assert max(markers["ms"] for _, markers in styles) < 11


def test_a_procedure_looks_the_same_in_a_figure_without_the_others():
    everything = {group: styles for group, *styles in style_groups(range(5), range(5))}
    assert {group: styles for group, *styles in style_groups(range(5), [1, 3])} == {
        group: everything[group] for group in (1, 3)
    }
