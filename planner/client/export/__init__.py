"""Makes a graph and its weights from a module, or from a checkpoint. torch is loaded only once it is needed. The map:

The order of steps          export, translate; passes, which make programs alike
What torch captures         capture, with keyword_inputs, plain_weights, custom_functions and data_sizes;
                            remedies, where it refuses
What it would forget        gradient_hooks, inference_mode, changed_states; unchanged, the module as it was before
Is it the module?           compare, with example_runs and random_numbers
Can it be trained in parts? independent_rows
The program as records      encode_nodes, encode_signature, encode_states; of these values, arguments, operators,
                            containers, dtypes, module_paths, regions
Sizes                       symbols, symbol_names, roundings
What calls do to storage    effects, storage; states, which share theirs; gradient_flow
Checkpoints                 checkpoint, meta_model
Generation                  cached_model and its cached_decoder, which keeps keys and values
What comes of it            exported_model; operator_costs of custom operators
"""

from planner.client.export.checkpoint import CacheSize, ExportedCheckpoint, export_checkpoint
from planner.client.export.export import export
from planner.client.export.exported_model import ExportedModel, load_exported, read_exported
from planner.client.export.operator_costs import OperatorCost, operator_cost

__all__ = [
    "CacheSize",
    "ExportedCheckpoint",
    "ExportedModel",
    "OperatorCost",
    "export",
    "export_checkpoint",
    "load_exported",
    "operator_cost",
    "read_exported",
]
