//go:build unix

package saver

import (
	"net"
	"os"
	"os/exec"
	"syscall"
)

// socketPair returns two connected sockets: one to use, and one for another process.
func socketPair() (net.Conn, *os.File, error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "saver"), os.NewFile(uintptr(fds[1]), "trainer")
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}

// detach puts a process into a session of its own, so that Ctrl-C in the trainer's
// terminal does not end the saver.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// ignored are the signals that a saver ignores. Schedulers announce the end of a job with
// SIGTERM, or with SIGUSR1 and SIGUSR2, and some send them to every process of the job.
// SIGPIPE would end a saver that logs to a trainer that has ended.
var ignored = []os.Signal{
	os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGUSR2,
}
