"""The unconstrained feature model: losses with derivatives, solvers, rounds, finite steps, instances."""
