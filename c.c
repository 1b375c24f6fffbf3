#include <gpumem.h>
int main(void) {return 0;}
