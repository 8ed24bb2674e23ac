//! Requests that are not ours to answer.

crate::reasons! {
    /// Why a request is left alone.
    #[derive(Clone, PartialEq, Eq)]
    pub Ignored {
        /// Another signer is asked, or one of a provider that this cluster does not admit.
        #[error("the signer is {0:?}, which is not one of ours")]
        AnotherSigner(String) => "another signer answers this request",
        /// Attestation is not enforced in this cluster yet (`autoApproveBindings`), and Kubernetes' own
        /// signer is asked as it would be without us: its approver, or a person, decides.
        #[error("attestation is not enforced in this cluster, and Kubernetes' own signer is asked")]
        NotEnforced => "attestation is not enforced in this cluster",
        /// It was denied already.
        #[error("the request was denied already")]
        AlreadyDenied => "the request was denied already",
        /// It failed already.
        #[error("the request failed already")]
        AlreadyFailed => "the request failed already",
        /// We approved it, and kube-controller-manager signs it.
        #[error("the request was approved already, and is not ours to sign")]
        AlreadyApproved => "the request was approved already",
        /// The built-in client signer issued it before it could be denied: somebody else approves
        /// requests without evidence. Close that way; the certificate cannot be taken back.
        #[error("the built-in client signer issued a certificate that we did not approve")]
        IssuedByOthers => "the certificate was issued already",
        /// It has its certificate.
        #[error("the certificate was issued already")]
        AlreadyIssued => "the certificate was issued already",
    }
}
