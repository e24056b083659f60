"""Recovered programs as readable Python: the text of an Equinox module.

`emit_methods` is the entry point. It cuts finished programs (`Recovered`) into layers (`layers`)
and writes them as classes (`classes`, `main_class`) of functions and statements (`expressions`).
Every expression is proved by tracing (`expressions.proof`, `ir.traced_form`), as is the whole file
(`comparison`), at the open sizes of the program.
"""

from invert.emission.emit import STYLES as STYLES
from invert.emission.emit import Layered as Layered
from invert.emission.emit import add_loader as add_loader
from invert.emission.emit import cut_into_layers as cut_into_layers
from invert.emission.emit import emit_methods as emit_methods
from invert.emission.emitted import Emission as Emission
from invert.emission.emitted import Origin as Origin
from invert.emission.emitted import is_index as is_index
from invert.emission.emitted import put_values as put_values
from invert.emission.main_class import CALL as CALL
from invert.emission.python.naming import comment as comment
from invert.emission.recovered import Recovered as Recovered
from invert.emission.recovered import constant_name as constant_name
from invert.ir.traced_form import difference as difference
from invert.ir.traced_form import strong as strong
