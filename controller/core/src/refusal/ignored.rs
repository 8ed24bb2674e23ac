//! Requests that are not ours to answer.

use super::catalogue::reasons;

reasons! {
    /// Why a request is left alone.
    #[derive(Clone, PartialEq, Eq)]
    Ignored {
        /// Another signer is asked, or one of a provider that this cluster does not admit.
        #[error("the signer is {signer:?}, which is not one of ours")]
        AnotherSigner {
            /// The signer that is asked.
            signer: String,
        } => "another signer answers this request",
        /// It was denied already.
        #[error("the request was denied already")]
        AlreadyDenied => "the request was denied already",
        /// It failed already.
        #[error("the request failed already")]
        AlreadyFailed => "the request failed already",
        /// It has its certificate.
        #[error("the certificate was issued already")]
        AlreadyIssued => "the certificate was issued already",
    }
}
