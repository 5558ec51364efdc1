"""What a sweep hands to a cluster, and what the cluster has of it.

A *share* is a few runs of one spec, trained one stack after another by one process. A *batch* is a
list of shares submitted at once; it is written to the store first (see `ledger`), so that later
processes know what was submitted. A *handle* names a share: its batch and its place there. The
cluster (see `slurm`) reports which handles are queued or running, nothing more: the store records
what is done.

The workers on this machine (`sweep.processes`) need none of this. They end with the process that
started them and talk to it through pipes, so there is nothing to adopt or to query.
"""
