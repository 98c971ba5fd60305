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

__all__: list[str]
__version__: str
