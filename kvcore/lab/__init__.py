"""The lab: real models over kvcore caches, to watch a format work and to measure what it costs.

Read in the order data passes: `models` fetches a file, `gguf_header` and `gguf_file` read it,
`config` and `weights` give it a shape, `tokenizer` and `chat` turn text into ids, `layers` and
`engine` run it, `sampling` picks tokens, `generate` and `agreement` are the two jobs on top.
Nothing here is imported by `import kvcore`.
"""
