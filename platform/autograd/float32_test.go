package autograd

import "github.com/cairn-ckpt/cairn/tensor"

func floats(t *tensor.Tensor) []float32    { return values[float32](t) }
func empty(shape ...int64) *tensor.Tensor  { return zeros[float32](shape...) }
func like(t *tensor.Tensor) *tensor.Tensor { return zerosLike[float32](t) }
