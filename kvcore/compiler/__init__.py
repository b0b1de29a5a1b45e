"""The kernel compiler: from a body on disk to a launch on a device.

``kernel`` (what an entry takes) -> ``body`` (its text) -> ``target`` (a compiler's dialect) ->
``render`` (the source) -> ``build`` (the program, cached) -> ``device`` (memory and launch).
The first four are pure. Nothing here knows a vendor; devices live in ``kvcore.backends``.
"""
