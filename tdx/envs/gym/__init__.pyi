from .providers import set_gym_backend as set_gym_backend
from .gym_env import GymEnv as GymEnv
from .gym_wrapper import GymWrapper as GymWrapper
from .infos import default_info_dict_reader as default_info_dict_reader
from .registry import RegisteredEnv as RegisteredEnv
from .registry import available_envs as available_envs
