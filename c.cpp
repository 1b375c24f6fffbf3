#include <gpumem.hpp>
#include <gpumem.hpp>
int main() {}
