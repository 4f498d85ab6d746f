// Package interop runs cairn against the real PyTorch and safetensors, in both
// directions. It is tests only, behind the build tag interop but for the test of
// setup, the script that finds or makes an interpreter: the cases know nothing of
// how it came to be there. What is compared, and what cannot be, is in
// docs/interop.md.
package interop
