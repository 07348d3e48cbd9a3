"""The unconstrained feature model: losses with derivatives, solvers, rounds, finite steps, instances.

- `profiled.Profiled` and `joint.Joint`: a client's loss, eqs. (6) and (1); `solvers` minimizes them.
- `rounds.run_rounds` with local training `exact`, `proximal`, `unregularized` or `together`.
- `finite.ProfiledUpdate`: rounds of finitely many head steps; `iterate` and `newton` find their fixed point.
- `displacement`: first-order theory of that fixed point, with ψ of eq. (19) (Theorem 2).
- `instances` and `finite_instances`: the clients of the paper's checks.
"""
