// Package collective moves and reduces host tensors between the ranks of a
// group: all-reduce, reduce-scatter, all-gather, all-to-all, broadcast and
// messages. It knows nothing of devices, files or checkpoints; all that it asks
// of a group is [group.Messenger]. The contract is in the comment of [Comm].
package collective
