package run

import (
	"errors"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// Log describes a run and its checkpoints. Its JSON is the output of 'cairn log --json',
// and holds no secrets.
type Log struct {
	// Path and Remote are the addresses of the run. Remote is empty if there is only one.
	Path   string `json:"path"`
	Remote string `json:"remote"`
	// Keep and KeepRemote are the policies.
	Keep       string `json:"keep"`
	KeepRemote string `json:"keep_remote"`
	// Checkpoints are all checkpoints, the oldest first.
	Checkpoints []Logged `json:"checkpoints"`
	// Bytes and RemoteBytes are the bytes of all copies in each place.
	Bytes       int64 `json:"bytes"`
	RemoteBytes int64 `json:"remote_bytes"`
	// Removable and RemovableBytes count the copies that Prune would remove.
	Removable      int      `json:"removable"`
	RemovableBytes int64    `json:"removable_bytes"`
	Warnings       []string `json:"warnings"`
}

// Logged is a checkpoint in a Log.
type Logged struct {
	Checkpoint
	// Copies is the result of Checkpoint.Copies.
	Copies string `json:"copies"`
	// NotUploaded is set if the remote place lacks the checkpoint; see Run.Lacking.
	NotUploaded bool `json:"not_uploaded"`
	// Verdict and RemoteVerdict are the outcomes of Prune for the copies. Nil: there is
	// no such copy, or no policy.
	Verdict       *LoggedVerdict `json:"verdict,omitempty"`
	RemoteVerdict *LoggedVerdict `json:"remote_verdict,omitempty"`
}

// LoggedVerdict is the outcome of Prune for a copy, and the reasons.
type LoggedVerdict struct {
	Outcome Outcome  `json:"outcome"`
	Reasons []string `json:"reasons"`
}

// Log describes the checkpoints that Checkpoints has returned, and the outcomes of Prune
// for them under the settings. keepTagged is PruneOptions.KeepTagged.
func (r *Run) Log(all []Checkpoint, s Settings, keepTagged bool) (*Log, error) {
	l := &Log{
		Path: r.String(), Remote: blob.Redact(s.Remote), Keep: s.Keep.String(), KeepRemote: s.KeepRemote.String(),
		Checkpoints: []Logged{}, Warnings: []string{},
	}
	l.add(all, r.Lacking(all, s.KeepRemote, time.Now()))
	if s.Keep.KeepsAll() && s.KeepRemote.KeepsAll() {
		return l, nil
	}
	rep, err := r.Plan(all, &PruneOptions{Keep: s.Keep, KeepRemote: s.KeepRemote, KeepTagged: keepTagged})
	if errors.Is(err, ErrPolicy) {
		l.Warnings = append(l.Warnings, "nothing would be removed: "+err.Error())
		return l, nil
	}
	if err != nil {
		return nil, err
	}
	l.addDecisions(rep, &s)
	return l, nil
}

// add adds the checkpoints of a run, of which the remote place lacks some.
func (l *Log) add(all, lacking []Checkpoint) {
	for _, c := range all {
		x := Logged{Checkpoint: c, Copies: c.Copies()}
		for _, copied := range []**Copy{&x.Local, &x.Remote} {
			if *copied != nil {
				shown := **copied
				shown.Path = blob.Redact(shown.Path)
				*copied = &shown
			}
		}
		if x.Local != nil {
			l.Bytes += x.Local.Bytes
		}
		if x.Remote != nil {
			l.RemoteBytes += x.Remote.Bytes
		}
		x.NotUploaded = slices.ContainsFunc(lacking, func(y Checkpoint) bool { return y.Name == c.Name })
		l.Checkpoints = append(l.Checkpoints, x)
	}
}

// addDecisions adds the outcomes that Prune would have.
func (l *Log) addDecisions(rep *Report, s *Settings) {
	find := func(list []Pruned, name string) *LoggedVerdict {
		if i := slices.IndexFunc(list, func(p Pruned) bool { return p.Name == name }); i >= 0 {
			return &LoggedVerdict{list[i].Outcome, list[i].Reasons}
		}
		return nil
	}
	for i := range l.Checkpoints {
		c := &l.Checkpoints[i]
		if !s.Keep.KeepsAll() {
			c.Verdict = find(rep.Local, c.Name)
		}
		if !s.KeepRemote.KeepsAll() {
			c.RemoteVerdict = find(rep.Remote, c.Name)
		}
	}
	l.Removable, l.RemovableBytes, l.Warnings = rep.Count, rep.Bytes, rep.Warnings
}
