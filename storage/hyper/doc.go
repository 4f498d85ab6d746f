// Package hyper reads and writes the checkpoints of hyper_parallel: a .metadata
// file beside one safetensors file and one file of pickled values for each rank,
// in its older and its newer dialect, and the layout files that say which part
// of each parameter a rank holds. It runs no pickle and knows nothing of Python
// or of devices: what it cannot express it refuses by name. The contract of
// reading is at Open, that of writing at Writer, that of layout files at Layouts.
package hyper
