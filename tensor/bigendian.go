//go:build armbe || arm64be || m68k || mips || mips64 || mips64p32 || ppc || ppc64 || s390 || s390x || shbe || sparc || sparc64

package tensor

// A checkpoint written from this machine's memory would be wrong everywhere
// else, so the build stops here rather than later.
var _ = thisPackageNeedsALittleEndianMachine
