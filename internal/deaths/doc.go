// Package deaths is the fault matrix: a rank that is a process dies in every way,
// at every step of a save and of a load, as coordinator or not, and all others
// notice, name it and find the last good checkpoint whole. It holds tests only,
// and knows the project by its front door and its ranks by group/tcp. The
// contract is that of group.Group: nothing hangs.
package deaths
