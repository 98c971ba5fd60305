from .errors import ArgumentError as ArgumentError
from .errors import ChainError as ChainError
from .errors import CheckError as CheckError
from .errors import CodeNotAllowedError as CodeNotAllowedError
from .errors import DeviceError as DeviceError
from .errors import EnvError as EnvError
from .errors import EnvNotFoundError as EnvNotFoundError
from .errors import KeyNotFoundError as KeyNotFoundError
from .errors import MissingPackageError as MissingPackageError
from .errors import PipelineError as PipelineError
from .errors import SpecError as SpecError
from .errors import TdxError as TdxError
from .errors import UnknownNameError as UnknownNameError
from .errors import Where as Where
from .errors import WorkerError as WorkerError
from .errors import WorkerTimeoutError as WorkerTimeoutError
from .keys import NestedKey as NestedKey
from .specs import Binary as Binary
from .specs import Bounded as Bounded
from .specs import BoundedContinuous as BoundedContinuous
from .specs import BoundedDiscrete as BoundedDiscrete
from .specs import BoxList as BoxList
from .specs import Categorical as Categorical
from .specs import CategoricalBox as CategoricalBox
from .specs import Choice as Choice
from .specs import Composite as Composite
from .specs import ContinuousBox as ContinuousBox
from .specs import MultiCategorical as MultiCategorical
from .specs import MultiOneHot as MultiOneHot
from .specs import NonTensor as NonTensor
from .specs import OneHot as OneHot
from .specs import Stacked as Stacked
from .specs import StackedComposite as StackedComposite
from .specs import TensorSpec as TensorSpec
from .specs import Unbounded as Unbounded
from .specs import UnboundedContinuous as UnboundedContinuous
from .specs import UnboundedDiscrete as UnboundedDiscrete
from .envs import CartPoleEnv as CartPoleEnv
from .envs import EnvBase as EnvBase
from .envs import EnvCreator as EnvCreator
from .envs import GymEnv as GymEnv
from .envs import GymWrapper as GymWrapper
from .envs import ParallelEnv as ParallelEnv
from .envs import PendulumEnv as PendulumEnv
from .envs import SerialEnv as SerialEnv
from .envs import check_env_specs as check_env_specs
from .envs import step_mdp as step_mdp
from .transforms import CallableTransform as CallableTransform
from .transforms import Compose as Compose
from .transforms import ObservationTransform as ObservationTransform
from .transforms import RewardTransform as RewardTransform
from .transforms import RunningTransform as RunningTransform
from .transforms import TimeBehaviour as TimeBehaviour
from .transforms import Transform as Transform

# transforms: generated
# transforms: end
from .engine import StageSpecs as StageSpecs
from .engine import TransformedEnv as TransformedEnv
from .engine import stage_specs as stage_specs
from .pipeline import EnvConfig as EnvConfig
from .pipeline import Pipeline as Pipeline
from .pipeline import RolloutConfig as RolloutConfig
from .pipeline import StageConfig as StageConfig

__all__: list[str]
__version__: str
