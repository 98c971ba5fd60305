from .base import CallableTransform as CallableTransform
from .base import Compose as Compose
from .base import ObservationTransform as ObservationTransform
from .base import RewardTransform as RewardTransform
from .base import RunningTransform as RunningTransform
from .base import TimeBehaviour as TimeBehaviour
from .base import Transform as Transform

# transforms: generated
from .action.action_scaling import ActionScaling as ActionScaling
from .casting.double_to_float import DoubleToFloat as DoubleToFloat
from .episode.init_tracker import InitTracker as InitTracker
from .episode.step_counter import StepCounter as StepCounter
from .episode.tensordict_primer import TensorDictPrimer as TensorDictPrimer
from .image.resize import Resize as Resize
from .image.to_tensor_image import ToTensorImage as ToTensorImage
from .keys.rename_transform import RenameTransform as RenameTransform
from .observation.cat_frames import CatFrames as CatFrames
from .observation.observation_norm import ObservationNorm as ObservationNorm
from .reward.reward_clipping import RewardClipping as RewardClipping
from .reward.reward_scaling import RewardScaling as RewardScaling
from .reward.reward_sum import RewardSum as RewardSum
# transforms: end

__all__: list[str]
