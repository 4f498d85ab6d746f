package examples

import (
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// The writer and the reader of the example keep the contracts of package storage.
func TestOwnStorageKeepsContracts(t *testing.T) {
	storagetest.Run(t, func(*testing.T) storagetest.Place {
		s := new(mem.Store)
		return storagetest.Place{
			Writer: func() storage.Writer { return &zipWriter{store: s} },
			Reader: func() storage.Reader { return &zipReader{store: s} },
		}
	}, nil)
}
