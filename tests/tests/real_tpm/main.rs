//! Machines with a TPM that become nodes: the program that people run in a management cluster, the
//! plugin with its device program, and a kubelet that knows of none of it. All API servers,
//! kubelets and TPMs are real, the latter in software.

mod bed;
mod boot;
mod hosts;
mod join;
mod keys;
mod others;
mod serving;
