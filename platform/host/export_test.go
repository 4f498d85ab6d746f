package host

import (
	"crypto/rand"
	"errors"

	"github.com/cairn-ckpt/cairn/background/stage"
)

// PretendHost makes p believe that it runs on another host.
func (p *Platform) PretendHost(name string) { p.host = name }

// OfferedMemory returns how many memories of goroutines can be found.
func OfferedMemory() (n int) {
	heap.Range(func(any, any) bool { n++; return true })
	return n
}

// OpenOther makes a memory file and opens it as if it were the file of another process.
func OpenOther() error {
	s := &symmetric{size: 8, mapped: true}
	mem, at, done, err := s.create()
	if err != nil {
		return err
	}
	defer done()
	at.Token = rand.Text()
	other, err := s.open(at)
	if err == nil {
		err = stage.Unmap(other)
	}
	return errors.Join(err, stage.Unmap(mem))
}
