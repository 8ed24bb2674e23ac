#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    kubelet_authenticator_fuzz::aws::sts_answer(input);
});
