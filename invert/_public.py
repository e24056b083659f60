"""The public names, imported by `invert` on first use of any of them."""

from invert._api import convert as convert
from invert._api import convert_graphdef as convert_graphdef
from invert._api import explain as explain
from invert._api import from_exported as from_exported
from invert._api import from_stablehlo as from_stablehlo
from invert._api import load as load
from invert._api import pattern as pattern
from invert._api import rewrite as rewrite
from invert._api import roundtrip as roundtrip
from invert._certificate import Certificate as Certificate
from invert._config import Config as Config
from invert._errors import DefectWarning as DefectWarning
from invert._errors import EmissionError as EmissionError
from invert._errors import InvertError as InvertError
from invert._errors import MalformedModelError as MalformedModelError
from invert._errors import MeshError as MeshError
from invert._errors import MissingDependencyError as MissingDependencyError
from invert._errors import PatternError as PatternError
from invert._errors import Problem as Problem
from invert._errors import SaveError as SaveError
from invert._errors import SignatureError as SignatureError
from invert._errors import UnsupportedOpError as UnsupportedOpError
from invert._errors import VerificationError as VerificationError
from invert._report import Report as Report
from invert.emission import Emission as Emission
from invert.modules.compiler import compiler_options as compiler_options
from invert.modules.graph import Graph as Graph
from invert.modules.memory import keep_memory as keep_memory
from invert.modules.methods import Methods as Methods
from invert.modules.module import Module as Module
from invert.modules.optimize import optimize as optimize
from invert.modules.save import save as save
from invert.modules.trainable import trainable as trainable
from invert.modules.values import assign as assign
from invert.modules.values import values as values
from invert.modules.values import with_values as with_values
from invert.patterns.explain import Attempt as Attempt
from invert.patterns.explain import Explanation as Explanation
from invert.rewriting.pattern import Call as Call
from invert.rewriting.pattern import EquationPattern as EquationPattern
from invert.rewriting.pattern import Pattern as Pattern
from invert.rewriting.pattern import Site as Site

# Its former name; programs that register their own patterns use it.
Structural = EquationPattern
