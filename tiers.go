package cairn

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/background/upload"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
)

// UploadReport describes an upload to AsyncOptions.Remote that succeeded.
type UploadReport = upload.Report

// tiered says which stores a rank uses.
type tiered struct {
	Remote  bool `json:"remote"`
	Ceiling bool `json:"ceiling"`
}

// tiers checks the options of the second store. It opens that store if the save runs in
// this process. Without a second store, or with a saver process, it returns nil.
func (s *Stager) tiers(local blob.Store, job *protocol.RankSave, o *AsyncOptions) (*saver.Tiers, error) {
	err := refuse(
		option{"AsyncOptions.LocalBytes", o.LocalBytes < 0, "is negative"},
		option{"AsyncOptions.LocalBytes", o.LocalBytes != 0 && o.Remote == "", "has no effect without AsyncOptions.Remote"},
		option{"AsyncOptions.Remote", o.Remote != "" && o.RankLocal != nil, "needs a group: it cannot be combined with SaveOptions.RankLocal"},
		option{"AsyncOptions.Remote", o.Remote != "" && o.Writer != nil, "cannot be combined with SaveOptions.Writer"},
	)
	if err != nil || o.Remote == "" {
		return nil, err
	}
	if _, ok := job.Writer.(storage.Publisher); !ok {
		return nil, fmt.Errorf("%w: AsyncOptions.Remote: checkpoints of the format %s cannot be uploaded", ErrOptions, o.format().Name())
	}
	v := o.describe(local, job)
	if s.options.Process != nil { // which may know more schemes than this process
		return nil, v.CheckTiers(local)
	}
	open := func(address string) (blob.Store, error) { return s.remotes.Open(address, OpenStore) }
	tiers, err := v.OpenTiers(local, open, func(to blob.Store) (storage.Writer, error) { return o.writer(to, "") })
	if err != nil {
		return nil, err
	}
	return tiers, tiers.Err()
}

// uploaded ends the upload of a save that is over.
func (s *Stager) uploaded(p *Pending, report *UploadReport, err error) {
	switch {
	case p.err != nil:
		report, err = nil, p.err
	case err != nil:
		err = &Error{Op: "upload", Where: blob.Redact(p.remote), Err: err}
		p.recorder.EndUpload(0, 0, nil, err)
	default:
		p.recorder.EndUpload(report.RankBytes, report.Time, report.Traffic, nil)
	}
	if p.cancel != nil {
		p.cancel(nil)
	}
	if err == nil {
		ours.saved(p.remotePlace, p.saveID)
	}
	s.mu.Lock()
	p.upload, p.uploadErr = report, err
	s.forgetUpload(p)
	s.mu.Unlock()
	close(p.uploaded)
}

// forgetUpload removes a save from those whose upload or copies are pending. The caller holds s.mu.
func (s *Stager) forgetUpload(p *Pending) {
	s.uploads = slices.DeleteFunc(s.uploads, func(x *Pending) bool { return x == p })
}
