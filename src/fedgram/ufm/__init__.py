"""The unconstrained feature model: losses with derivatives, solvers, rounds, finite steps, instances.

- `profiled.Profiled`, `joint.Joint` and `joint.CorrectedJoint`: a client's loss, eqs. (6), (1) and (13);
  `solvers` minimises each of them.
- `rounds.run_rounds` with a way for clients to train: `exact`, `proximal`, `unregularised`, `together` or
  `aligned`; `rounds.joint_step`, one gradient step a round in head, bias and features (Appendix G.1).
- `finite.ProfiledUpdate`: rounds of finitely many steps in the head, `next_head` and `next_gram`;
  `fixed_point` finds where they end, and `displacement` has the first-order theory of it, with `psi` of
  eq. (19) (Theorem 2).
- `instances` and `finite_instances`: the clients on which the paper checks all of this.
"""
