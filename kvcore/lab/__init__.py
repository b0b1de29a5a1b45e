"""The lab: real models over kvcore caches, to watch a format work and to measure what it costs.

Read in the order data passes: `models` fetches a file, `gguf_header` and `gguf_file` read it,
`config` and `weights` give it a shape, `tokenizer` and `chat` turn text into ids, `layers` and
`engine` run it, `sampling` picks tokens, `generate` and `agreement` are the two jobs on top.

The measurements: `texts` are read, `arms` (and `simulate`) say what is compared, `dump` and
`dump_file` keep real K, V and queries; `measure`, `patterns` and `eval_error` look at attention,
`eval_kl` and `divergence` at what the model says, `recall` at what it still knows. A `*_suite`
runs one of them over many arms and keeps results in a `journal`, a `*_tables` says them in
`tables`; `report` puts all on one page with `plots`, as `report_plan` sizes it.

Nothing here is imported by `import kvcore`.
"""
