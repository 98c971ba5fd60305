from .base import CallableTransform as CallableTransform
from .base import Compose as Compose
from .base import ObservationTransform as ObservationTransform
from .base import RewardTransform as RewardTransform
from .base import RunningTransform as RunningTransform
from .base import TimeBehavior as TimeBehavior
from .base import Transform as Transform

# transforms: generated
from .action.action_discretizer import ActionDiscretizer as ActionDiscretizer
from .action.action_mask import ActionMask as ActionMask
from .action.action_scaling import ActionScaling as ActionScaling
from .action.flatten_action import FlattenAction as FlattenAction
from .casting.device_cast_transform import DeviceCastTransform as DeviceCastTransform
from .casting.double_to_float import DoubleToFloat as DoubleToFloat
from .casting.dtype_cast_transform import DTypeCastTransform as DTypeCastTransform
from .casting.pin_memory_transform import PinMemoryTransform as PinMemoryTransform
from .encoders.r3m_transform import R3MTransform as R3MTransform
from .episode.batch_size_transform import BatchSizeTransform as BatchSizeTransform
from .episode.burn_in_transform import BurnInTransform as BurnInTransform
from .episode.expand_as import ExpandAs as ExpandAs
from .episode.finite_tensor_dict_check import FiniteTensorDictCheck as FiniteTensorDictCheck
from .episode.frame_skip_transform import FrameSkipTransform as FrameSkipTransform
from .episode.init_tracker import InitTracker as InitTracker
from .episode.noop_reset_env import NoopResetEnv as NoopResetEnv
from .episode.step_counter import StepCounter as StepCounter
from .episode.tensordict_primer import TensorDictPrimer as TensorDictPrimer
from .episode.terminate_transform import TerminateTransform as TerminateTransform
from .image.center_crop import CenterCrop as CenterCrop
from .image.crop import Crop as Crop
from .image.gray_scale import GrayScale as GrayScale
from .image.resize import Resize as Resize
from .image.to_tensor_image import ToTensorImage as ToTensorImage
from .keys.exclude_transform import ExcludeTransform as ExcludeTransform
from .keys.rename_transform import RenameTransform as RenameTransform
from .keys.select_transform import SelectTransform as SelectTransform
from .observation.cat_frames import CatFrames as CatFrames
from .observation.cat_tensors import CatTensors as CatTensors
from .observation.clip_transform import ClipTransform as ClipTransform
from .observation.flatten_observation import FlattenObservation as FlattenObservation
from .observation.next_observation_delta import NextObservationDelta as NextObservationDelta
from .observation.observation_norm import ObservationNorm as ObservationNorm
from .observation.permute_transform import PermuteTransform as PermuteTransform
from .observation.sign_transform import SignTransform as SignTransform
from .observation.squeeze_transform import SqueezeTransform as SqueezeTransform
from .observation.unsqueeze_transform import UnsqueezeTransform as UnsqueezeTransform
from .observation.vec_norm import VecNorm as VecNorm
from .reward.binarize_reward import BinarizeReward as BinarizeReward
from .reward.reward2_go_transform import Reward2GoTransform as Reward2GoTransform
from .reward.reward_clipping import RewardClipping as RewardClipping
from .reward.reward_scaling import RewardScaling as RewardScaling
from .reward.reward_sum import RewardSum as RewardSum
# transforms: end

__all__: list[str]
