"""A secure federation in Flower's simulation engine: real messages, serialized."""

import numpy as np
import pytest

from fedgram import Penalty, predict
from fedgram.flower.deployment import federate
from fedgram.flower.scaling import Scaling, measure_columns
from fedgram.flower.site import Site
from fedgram.flower.sites_file import SitesConfig
from fedgram.theory.geometry import psd
from fedgram.theory.moments import Moments

SITES_FILE = """
name = "towns"
kind = "GENERATED"
inputs = ["a"]
targets = ["u", "v"]
procedure = "proximal+corrected"
backbone = "resmlp-small"
features = 8
rounds = 1
epochs = 1
precision = "fp64"
secure = true
reply-timeout = 300.0
"""


def write_sites(folder):
    rng = np.random.default_rng(0)
    text = SITES_FILE
    for m, name in enumerate(("coast", "ridge", "valley")):
        rows = rng.standard_normal((40, 3)) @ (np.eye(3) + 0.3 * m * np.eye(3, k=1)) + 0.2 * m
        np.savetxt(folder / f"{name}.csv", rows, delimiter=",", header="a,u,v", comments="", fmt="%.17g")
        text += f'\n[sites.{name}]\ntable = "{name}.csv"\n'
    (folder / "sites.toml").write_text(text)
    return SitesConfig.read(folder / "sites.toml").with_settings(out=str(folder / "out"))


@pytest.mark.slow
def test_a_secure_federation_runs_in_the_simulation_engine(tmp_path):
    pytest.importorskip("ray")
    config = write_sites(tmp_path)
    record = federate(config, is_simulation=True)
    sites = [
        Site.from_table(str(tmp_path / f"{name}.csv"), name, inputs="a", targets=["u", "v"])
        for name in ("coast", "ridge", "valley")
    ]
    scaling = Scaling.pool([measure_columns(site) for site in sites], inputs=1)
    parts = [scaling.encode_site(site).moments for site in sites]
    moments: Moments = parts[0].merged(*parts[1:])
    plain = predict(moments, Penalty())
    assert record.complete
    assert psd.relative_error(record.prediction.barycenter, plain.barycenter.gram) < 1e-9
    assert record.prediction.relative_gap == pytest.approx(float(plain.relative_gap), abs=1e-9)
