"""The fixed structural signature of a node (paper, section 3 "Problem Setup")."""

from geof.signature.structural import (
    AddStructuralSignature,
    StructuralSignature,
    structural_signature,
)

__all__ = [
    "AddStructuralSignature",
    "StructuralSignature",
    "structural_signature",
]
