package storage

import (
	"fmt"
	"time"
)

// NewSaveID returns the id of a save that begins at t. Ids sort by time, to the
// second; random, which should be drawn anew for each save, tells those of the
// same second apart. They hold lower-case letters, digits and a dash, which
// every file system and object store keeps as they are.
func NewSaveID(t time.Time, random uint32) string {
	return fmt.Sprintf("%s-%08x", t.UTC().Format("20060102t150405"), random)
}
