"""Contracts: record what a stack does to its data, and compare other stacks with it."""

from tdx.compare.model import Contract
from tdx.compare.report import ContractReport, Difference
from tdx.contracts.check import check_contract, diff_stacks
from tdx.contracts.freeze import freeze
from tdx.contracts.states import load_state, save_state
from tdx.contracts.storage import load_contract, save_contract

__all__ = [
    "Contract",
    "ContractReport",
    "Difference",
    "check_contract",
    "diff_stacks",
    "freeze",
    "load_contract",
    "load_state",
    "save_contract",
    "save_state",
]
