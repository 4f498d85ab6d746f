// Package interop runs cairn against the real PyTorch and safetensors, in both directions. It
// is tests only, behind the build tag interop but for the test of setup, the script that
// finds or makes an interpreter: the cases do not depend on how it was installed.
// docs/interop.md lists the comparisons and their limits.
package interop
