//go:build unix && !linux

package launch

import "syscall"

// ownGroup returns the attributes of a process that leads a process group.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// isEnding returns false: this system does not report that a process is ending.
func isEnding(int) bool { return false }

// groupAlive reports whether a group has any process.
func groupAlive(group int) bool { return groupHeld(group) }
