"""The production orchestrator, pools, replicas, supervisors and worker loops in one process, under virtual time.

Only the launcher (workers are tasks), the engine (a pure function of the request) and the clock are substituted: see
:mod:`tests.simulation.world`. ``make simulate N=1000`` runs so many schedules of requests and faults.
"""
