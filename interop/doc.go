// Package interop runs cairn against the real PyTorch and safetensors, in both
// directions. It is tests only, behind the build tag interop, and knows nothing
// of how an interpreter came to be there: the script setup finds or makes one.
// What is compared, and what cannot be, is in docs/interop.md.
package interop
