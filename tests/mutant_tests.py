"""Which test files concern which source files, for `python -m tests.mutants`."""

_HYPERNETS = "methods/test_pfedhn methods/test_pfedla methods/test_hyper_identities"
_REDERIVED = (
    "methods/test_rederived methods/test_newer methods/test_rederived_newer "
    "methods/test_rederived_personal methods/test_rederived_networks"
)
_FLOWER = (
    "deployment/test_faults deployment/test_newcomers deployment/test_parity deployment/test_server"
)

TESTS = {
    "params.py": "test_params methods/test_simple_methods methods/test_ditto test_federation "
    "engines/test_screening",
    "methods/parts/step_along.py": "methods/test_simple_methods methods/parts/test_hypernets "
    "methods/test_pfedhn methods/test_server_optimizers methods/test_pfedla methods/test_pfedseq "
    "methods/test_pefll",
    "federation/*.py": "test_federation methods/test_simple_methods engines/test_hello "
    "methods/test_identities engines/test_screening methods/test_conformance "
    "methods/test_joining_and_leaving",
    "data/partition.py": "data/test_random_choices data/test_partition",
    "methods/parts/hypernets.py": f"methods/parts/test_hypernets {_HYPERNETS} methods/test_pefll "
    "methods/test_joining_and_leaving",
    "methods/parts/own_head.py": "methods/test_pfedhn methods/test_pfedseq methods/test_heads "
    "methods/test_rederived_networks",
    "methods/parts/server_steps.py": "methods/test_server_steps methods/test_rederived_newer",
    "methods/parts/lora_blocks.py": "methods/test_newer",
    "methods/__init__.py": "test_method_options methods/test_conformance",
    "methods/*.py": f"methods/test_{{stem}} {_REDERIVED} methods/test_simple_methods "
    "methods/test_server_optimizers methods/test_hyper_identities methods/test_identities "
    "methods/test_joining_and_leaving methods/test_conformance",
    "learners/attribution.py": "learners/test_attribution",
    "learners/calibration.py": "learners/test_attribution learners/test_resizing "
    "learners/test_architectures learners/test_pooled methods/test_pfedseq "
    "methods/test_joining_and_leaving",
    "learners/pooled.py": "learners/test_pooled",
    "learners/running_sums.py": "learners/test_running_sums learners/test_pooled",
    "learners/fused_mamba.py": "learners/test_mamba learners/test_mamba_paths",
    "learners/history.py": "learners/test_history learners/test_resizing methods/test_pfedseq "
    "methods/test_joining_and_leaving",
    "learners/mamba*.py": "learners/test_mamba learners/test_architectures "
    "learners/test_resizing learners/test_mamba_paths",
    "learners/selective_scan.py": "learners/test_selective_scan learners/test_mamba",
    "learners/*.py": "learners/test_architectures learners/test_resizing methods/test_pfedseq",
    "deployment/ledger.py": "deployment/test_memories",
    "deployment/audit.py": "deployment/test_memories",
    "deployment/node.py": "deployment/test_node",
    "deployment/site*.py": f"deployment/test_site {_FLOWER}",
    "deployment/status.py": "deployment/test_server cli/test_flower",
    "deployment/loopback.py": "cli/test_flower",
    "deployment/certificates.py": "cli/test_flower",
    "deployment/proxy.py": "deployment/test_fence",
    "deployment/*.py": _FLOWER,
    "engines/answer.py": "engines/test_hello engines/test_states engines/test_wire "
    "engines/test_payload methods/test_identities engines/test_screening",
    "engines/conditions.py": "engines/test_attendance engines/test_screening "
    "methods/test_joining_and_leaving",
    "engines/states.py": "engines/test_states runs/test_checkpoint",
    "engines/privacy.py": "engines/test_privacy",
    "engines/local.py": "engines/test_local engines/test_rounds engines/test_states "
    "engines/test_hello engines/test_wire engines/test_shared_passes engines/test_devices "
    "methods/test_conformance",
    "engines/rendezvous.py": "engines/test_devices engines/test_shared_passes",
    "engines/grouping.py": "engines/test_devices engines/test_shared_passes",
    "engines/roster.py": "engines/test_attendance methods/test_joining_and_leaving "
    "deployment/test_newcomers",
    "engines/intake.py": "engines/test_screening engines/test_rounds engines/test_payload",
    "engines/*.py": "engines/test_rounds engines/test_{stem} engines/test_hello engines/test_wire "
    "engines/test_states runs/test_records engines/test_attendance engines/test_screening "
    "methods/test_joining_and_leaving methods/test_conformance",
    "runs/checkpoint.py": "runs/test_checkpoint methods/test_conformance "
    "methods/test_joining_and_leaving runs/test_run",
    "runs/identity.py": "runs/test_identity runs/test_checkpoint engines/test_payload "
    "engines/test_devices runs/test_run",
    "runs/records.py": "runs/test_records report/test_tables report/test_comparison "
    "report/test_progress runs/test_run",
    "runs/sweep.py": "runs/test_sweep",
    "runs/world.py": "runs/test_world runs/test_sites engines/test_devices runs/test_run "
    "model/test_text cli/test_own_data",
    "runs/folder.py": "runs/test_folder runs/test_run cli/test_run",
    "runs/run.py": "runs/test_run cli/test_run",
    "runs/interrupt.py": "runs/test_run",
    "runs/*.py": "runs/test_run runs/test_sites",
}
"""The test files that concern a source file, the quickest first; the first line that fits holds."""
