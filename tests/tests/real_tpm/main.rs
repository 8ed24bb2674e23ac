//! Machines with a TPM that become nodes: the released program in a management cluster, the plugin with its device
//! program, and an unmodified kubelet. All API servers, kubelets and TPMs are real, the latter in software.

mod bed;
mod boot;
mod change;
mod hosts;
mod join;
mod keys;
mod others;
mod page;
mod phases;
mod serving;
