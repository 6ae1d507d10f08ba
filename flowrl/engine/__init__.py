"""The engine: cursors that pull items through a graph, and the calls between its driver and its actors."""
