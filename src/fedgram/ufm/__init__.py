"""The unconstrained feature model: losses with derivatives, solvers, rounds, finite steps, instances.

- `profiled.Profiled`, `joint.Joint` and `joint.CorrectedJoint`: a client's loss, eqs. (6), (1) and (13);
  `solvers` minimizes them.
- `rounds.run_rounds` with local training `exact`, `proximal`, `unregularized`, `together` or `aligned`.
- `finite.ProfiledUpdate`: rounds of finitely many head steps; `iterate` and `newton` find their fixed point.
- `displacement`: first-order theory of that fixed point, with `psi` of eq. (19) (Theorem 2).
- `instances` and `finite_instances`: the clients of the paper's checks.
"""
