"""The simulation harness: deterministic runs of several processes over one store, each run named by a seed.

| module          | contents                                                                                      |
|-----------------|-----------------------------------------------------------------------------------------------|
| `scheduler`     | `SimulatedWorld` and its actors: one runs at a time, and each request may switch to another   |
| `request_order` | requests that a process sends in parallel, in an order drawn by the seed                      |
| `faults`        | fault kinds by profile, long stalls                                                           |
| `losses`        | journal objects that disappear during a run                                                   |
| `runs`          | `SimulatedRun`, the base of each protocol's model                                             |
| `sweeps`        | ranges of seeds, rules that are broken on purpose, and the command that repeats a failed seed |

A protocol's model adds verbs (what its actors do) and invariants (what must hold at each response and at the end).
`sparklog.common.reached` counts the named situations that runs reach; `tests.support.reached` reports them.
"""
