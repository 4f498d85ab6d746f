"""Makes verl importable without packages that saving and loading do not use."""

import stand_ins

stand_ins.use("ray", "tensordict", "datasets", "PIL", "pandas", "orjson")
