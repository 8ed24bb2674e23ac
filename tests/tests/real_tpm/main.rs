//! Tests of machines with a TPM that become nodes: the released program in a management cluster, the plugin with its
//! TPM helper, and an unmodified kubelet. All API servers and kubelets are real, and the TPMs are software TPMs.

mod bed;
mod boot;
mod change;
mod findings;
mod hosts;
mod join;
mod keys;
mod others;
mod page;
mod phases;
mod serving;
