package cairn

// Version is the version of this program and library.
const Version = "0.1.0"
