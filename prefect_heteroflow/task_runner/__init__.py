"""`HeteroTaskRunner`: a task's engine stays in the flow's process, its body runs in a child."""
