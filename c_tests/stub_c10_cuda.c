/* Has the soname by which gpumem recognises that torch is in the process, and nothing else of
 * torch. */
int gpumem_test_stub_of_c10_cuda(void);
int gpumem_test_stub_of_c10_cuda(void) { return 1; }
