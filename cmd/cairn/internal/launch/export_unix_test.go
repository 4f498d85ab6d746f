//go:build unix

package launch

// GroupAlive is groupAlive for tests.
var GroupAlive = groupAlive
